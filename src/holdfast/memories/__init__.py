"""What agents remember, one thin module per contract, each over the store and none over another.

Functions here raise; the tool layer turns what they raise into replies.
"""
