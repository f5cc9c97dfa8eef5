"""When work in the background that makes passes shorter begins."""

# Passes take this many times as long as the work before it begins. They get about an eighth shorter by it, so its lack
# has cost as much time as it by then: a short run has no cost, and any other at most twice the smaller cost.
MIN_RATIO = 8.0
