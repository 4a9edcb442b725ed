"""Bad inputs, one a row: what is run, the exit code, and the words that the message must hold."""
