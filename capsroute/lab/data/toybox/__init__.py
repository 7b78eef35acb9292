"""Fifty toys made of convex solids, and a stage with two eyes and six lightings on which they are rendered."""
