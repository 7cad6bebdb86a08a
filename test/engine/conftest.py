"""Nothing but its place: pytest puts this folder, with the helpers of these tests, on the import path."""
