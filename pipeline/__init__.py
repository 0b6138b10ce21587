"""Analytics on the store, through Spark."""
