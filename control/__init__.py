"""The control plane: Postgres, scraper, controller, API and command line."""
