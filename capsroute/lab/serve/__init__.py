"""A trained network behind HTTP: `app` has the routes, `guard` refuses bad requests, `server` listens."""
