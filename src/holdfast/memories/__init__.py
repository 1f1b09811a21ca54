"""The memories of agents, one thin module per contract; each uses the store and no other module.

Functions here raise; the tool layer turns what they raise into replies.
"""
