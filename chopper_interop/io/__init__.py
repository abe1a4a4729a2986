"""Files: unpacking inputs, writing outputs completely or not at all; JSON, SQLite, protobuf."""
