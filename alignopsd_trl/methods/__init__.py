"""The rows of the results table; see `alignopsd_trl.methods.base` for the hooks."""

from alignopsd_trl.methods.base import Credit, Method, Teacher
from alignopsd_trl.methods.contract import MethodError, checked_credit
from alignopsd_trl.methods.registry import get_method, method_names, register

__all__ = [
    "Credit",
    "Method",
    "MethodError",
    "Teacher",
    "checked_credit",
    "get_method",
    "method_names",
    "register",
]
