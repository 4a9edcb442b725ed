"""The commands on files, one file a command, named as the user types it. Nothing here uses typer."""
