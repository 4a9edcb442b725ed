"""What commands do with a session: search, prove, plan, repair, resume, write, and say where it came from."""
