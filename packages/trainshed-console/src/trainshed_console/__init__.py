"""The web console: pages made from the API's methods and records. The API decides what is allowed."""
