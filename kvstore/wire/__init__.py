"""What nodes send to each other: frames of messages, and the TCP connections that carry them."""
