"""Is it faster?"""
