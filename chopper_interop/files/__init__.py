"""Files: unpacked, whole or not there; JSON text, SQLite, protocol buffers."""
