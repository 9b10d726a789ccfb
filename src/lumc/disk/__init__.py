"""Files that are hashed and whole: artifacts, compiled objects, weights."""
