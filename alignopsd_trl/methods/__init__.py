"""One file per row of the results table; see `alignopsd_trl.methods.base` for the hooks."""

from alignopsd_trl.methods.base import Coefficients, Credit, Method, Teacher, get_method, method_names, register

__all__ = ["Coefficients", "Credit", "Method", "Teacher", "get_method", "method_names", "register"]
