"""The rectified gap taken apart: what matched views say, and what their histories do to the words."""
