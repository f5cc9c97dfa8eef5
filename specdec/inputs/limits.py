"""Limits of images and recordings before they are decoded, since a small file may hold a large one."""

MOST_BYTES = 64 << 20  # of one file
MOST_PIXELS = 80_000_000  # of a conversation's images: 240 MB once decoded; Pillow warns from 89 million on
MOST_SECONDS = 3600  # of one recording
