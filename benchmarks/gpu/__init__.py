"""Does it work on a GPU, and how fast is it there?"""
