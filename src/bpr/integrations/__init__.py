"""bpr inside other people's frameworks: one module for each, and one extra that brings its package.

    from bpr.integrations.langchain import BprRetriever         # pip install 'binary-passage-retriever[langchain]'

A module here translates between a framework and the public names of bpr, and decides nothing. asking.py and store.py
are what several of them share; they know no framework. Importing this package imports nothing.
"""
