"""The admission webhook and policy that prepare upper pods for virtual nodes."""
