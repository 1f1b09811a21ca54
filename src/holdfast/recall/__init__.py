"""Recall: questions, ranking, answers, and the optional search by meaning."""
