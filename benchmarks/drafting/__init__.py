"""How many draft tokens are accepted?"""
