"""Is it the same text?"""
