"""Folders of transformers, out and back in.

`configuration_hdlm.py` and `modeling_hdlm.py` are what such a folder computes with: they are copied into it as they
are, need torch and transformers alone, and nothing of hdlm imports them.
"""
