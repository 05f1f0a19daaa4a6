"""The Streamlit web app: pages, view models, charts."""
