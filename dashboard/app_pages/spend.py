"""What about it?"""

import streamlit as st

st.title("spend")
