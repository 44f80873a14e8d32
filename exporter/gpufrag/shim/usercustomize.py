"""Runs if another sitecustomize comes first on PYTHONPATH and does not call the next one. See sitecustomize.py."""

import os

_file = os.path.join(os.path.dirname(os.path.abspath(__file__)), "sitecustomize.py")
with open(_file) as _opened:
    _code = compile(_opened.read(), _file, "exec")
exec(_code, {"__name__": "usercustomize", "__file__": _file})
