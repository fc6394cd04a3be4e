"""Carillon's domain: what a campaign, a task and a send are, and the laws that they keep.

``app.py`` of each function → this package ← ``carillon.adapters``. Nothing here knows boto3 or Lambda.
"""
