"""The game with canary texts: which of them was a language model trained on?"""
