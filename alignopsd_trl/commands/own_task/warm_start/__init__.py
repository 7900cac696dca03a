"""A first policy from demonstrations: ``alignopsd warm_start TASK``."""
