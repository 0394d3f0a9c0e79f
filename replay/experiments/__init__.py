"""Questions of users, a folder each, over one base."""
