"""Models, processes, hyperschedules and training runs as plain data: what config.json and recipes say.

Reading it loads no torch. `build.py` alone turns words into objects, when somebody asks for them.
"""
