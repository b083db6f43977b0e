"""The storage API over HTTP: requests taken apart, methods, uploads, downloads, answers, the access log."""
