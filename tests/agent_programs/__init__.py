"""Ordinary programs, one a framework: `agent` plays, `LOSES` is what its framework raises for the policy's mistakes."""
