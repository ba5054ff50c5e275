"""The HTTP surface: routes translate requests into statements and answers into JSON, and decide nothing themselves."""
