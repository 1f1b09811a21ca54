"""From a question to an answer: what it asks for, which records may answer it, in which order, what is shown."""
