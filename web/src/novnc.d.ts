declare module "@novnc/novnc";
declare module "*.css";
