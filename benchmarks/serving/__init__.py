"""How do servers and their clients fare?"""
