"""The command line: a file for what each verb does, imported when the verb is called."""
