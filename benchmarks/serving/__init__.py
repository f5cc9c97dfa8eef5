"""How fast are servers, and what do their clients wait?"""
