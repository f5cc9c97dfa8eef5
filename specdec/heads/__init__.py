"""Trained draft heads: modules, caches, draft trees and folders."""
