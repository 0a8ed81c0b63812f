"""Membership attacks on canary texts, one file each."""
