"""Turns a trained DFlash drafter into a proven, servable, publishable checkpoint."""

__version__ = "0.1.0"
