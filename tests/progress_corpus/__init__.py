"""What programs printed, with times: `recordings` holds it, `record` made it of `programs`."""
