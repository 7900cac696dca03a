"""One file per row of the results table; see `alignopsd_trl.methods.base` for the hooks."""

from alignopsd_trl.methods.base import Credit, Method, Teacher
from alignopsd_trl.methods.contract import MethodError, check_credit, checked_credit
from alignopsd_trl.methods.registry import get_method, method_names, register

__all__ = [
    "Credit",
    "Method",
    "MethodError",
    "Teacher",
    "check_credit",
    "checked_credit",
    "get_method",
    "method_names",
    "register",
]
