"""Recipes: several commands in one YAML file, checked as a whole, run in order, cached.

    text ─▶ values with their lines ─▶ Recipe ─▶ steps as command lines ─▶ run, or found in the cache

Nothing here knows what a command does. What a step may say is read off the command line (`vocabulary`), and a
step runs as the command line that it stands for.
"""
