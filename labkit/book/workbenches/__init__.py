"""Workbenches: controls that start real ranks, and pictures of what these did."""
