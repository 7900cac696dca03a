"""The exact testbed: how good is credit, and what does it teach, where every value is known?"""
