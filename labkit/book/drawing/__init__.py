"""Figures and what they are drawn with: axes, boxes, tables, marks, styles, small SVG."""
